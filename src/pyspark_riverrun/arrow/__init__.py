"""Record batches to Arrow and back, vectorised with numpy.

- ``decode``: fetch responses become Arrow tables; ``encode``: Arrow columns become records.
- ``varints``: zigzag varints; ``byte_join``: joins the bytes of several columns row by row.
- ``arrays``: Arrow arrays over numpy memory.
"""
