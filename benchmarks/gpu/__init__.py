"""What is checked and measured on a machine with a GPU: `make gpu`."""
