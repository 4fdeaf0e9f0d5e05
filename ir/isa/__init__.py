"""Instructions as data: specs, owners and the table."""
