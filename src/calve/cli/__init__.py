"""The command line: one module per noun, loaded when one of its commands is called."""
