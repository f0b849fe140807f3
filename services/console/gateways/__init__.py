"""What the console gets from outside: bytes of uploads, page counts, the Volume."""
