"""Reading a model file: from protos to values and graphs."""
