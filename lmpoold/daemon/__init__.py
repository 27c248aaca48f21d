"""The loops of lmpoold."""
