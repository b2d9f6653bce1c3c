"""Membership in consumer groups for many members at once, over few connections."""
