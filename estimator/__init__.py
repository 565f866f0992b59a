"""Physics only: pure polars expressions and functions of tables. No input or output, no pipeline, no
publishing.
"""
