"""Sockets between ranks: which address they use, how they are dialled and accepted, proof of the token, and frames."""
