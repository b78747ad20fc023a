"""Who a peer is, and what it may do: TLS, SASL mechanisms, principals, ACLs and quotas.

Everything here is pure except ``tls.py``, which reads certificate files. Both ends of a connection
use it: ``server/security`` and ``client/security.py``.
"""
