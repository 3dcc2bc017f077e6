"""The ledger: who may produce which sample, what has come back, and which batch is next. Start at machine.py."""
