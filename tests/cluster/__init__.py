"""Tests of the controller's judgement."""
