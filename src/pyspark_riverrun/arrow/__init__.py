"""Record batches to Arrow and back, vectorised with numpy."""
