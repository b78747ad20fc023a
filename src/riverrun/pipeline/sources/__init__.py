"""From records and files to typed rows.

- ``parsing``: records become rows with the fields of their value, or a reason for the dead letters.
- ``schemas``: the schema of each source; ``json_schema`` infers one, ``avro`` converts one.
- ``bounded_reads``: batch reads between two offsets.
"""
