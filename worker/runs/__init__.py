"""Responses in the making: apart from the connections that asked for them, so that any number can read one."""
