"""The console's statements as methods of the same names, one class per subject."""
