"""Fetch for consumers and followers: sessions, long polling, responses."""
