"""What is asked of the model, and what of its answer stands in the document."""
