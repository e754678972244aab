"""Turns verdicts into text for people."""
