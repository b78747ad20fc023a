"""Long work on logs beside the event loop: jobs, and the processes that run them."""
