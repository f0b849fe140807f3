"""A user's own agent: one file, no package."""

import sys

if __name__ == "__main__":
    print("hello", *sys.argv[1:])
