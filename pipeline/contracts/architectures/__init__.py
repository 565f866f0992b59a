"""How Hugging Face configurations name and imply the shapes of a model: one idea per file."""
