"""Tests of request handlers, called as the router calls them."""
