"""The console's HTTP: `/api/v1`, the pages, and what stands around every request."""
