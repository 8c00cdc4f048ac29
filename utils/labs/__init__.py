"""Checks for the labs, and the labs themselves from their solutions.

``verdict``: what a check says. ``check``: call a puzzle's judge and show its verdict. ``lab01`` …: the judges of one
lab each. ``generate``: labs from solutions.
"""
