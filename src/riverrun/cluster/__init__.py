"""The controller's judgement: requests and an image in, records and a response out.

Pure but for ``runner.py``. Elections between several nodes come with the quorum.
"""
