"""Groups of both protocols: their descriptions, and requests for their offsets.

| module | subject |
|---|---|
| ``description`` | groups in lists and descriptions |
| ``offset_requests`` | whether a group allows a request for offsets |
| ``offset_expiry`` | which offsets have expired |
"""
