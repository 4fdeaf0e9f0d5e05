"""The verifier: the rules that every kernel keeps."""
