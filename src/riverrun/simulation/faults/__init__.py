"""Fault schedules: drawing, injecting and shrinking them."""
