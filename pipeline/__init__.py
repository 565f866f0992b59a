"""Dagster, the source contracts and the command line. Imports estimator and warehouse; nothing imports it."""
