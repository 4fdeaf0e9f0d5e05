"""Wing 3, making it run: code generation, toolchains, kernel store, memory and launching. Imports only ir."""
