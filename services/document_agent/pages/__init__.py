"""What a file is and what stands on each page; the child process in which that is found out, and its handle."""
