"""Publishing only: the column dictionary, the file formats and the release. Knows no physics and no
pipeline.
"""
