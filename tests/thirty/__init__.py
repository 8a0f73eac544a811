"""Thirty small models of other people's libraries, each made here without a download, built from its folder, and asked."""
