"""Schemas that values name by id, in the wire format of Confluent's schema registry.

- ``framing``: the header of a value; ``schema``: a registered schema with its references.
- ``address``, ``client``: the registry's REST API; ``catalog``: schemas by id, declared or cached.
- ``avro``, ``protobuf``, ``json_schema``: one format each. They need the extra ``registry``.
- ``rendering``: values of any format as JSON, for people.
"""
