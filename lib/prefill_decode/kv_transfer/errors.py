"""What can go wrong between two sides, as the reading side is told of it.

After any of these the blocks that were to be filled hold nothing of use, nothing will write to them
any more, and the peer and all other transfers go on."""


class TransferError(Exception):
    """A transfer that did not happen."""


class Refused(TransferError):
    """The two sides do not agree: on the layout, on the key, on who the other is."""


class Expired(TransferError):
    """The offer does not hold: its lease has ended, or its blocks have another holder by now."""


class Corrupt(TransferError):
    """What came is not what was sent, or is no frame at all."""


class PeerLost(TransferError):
    """The peer is not there, or has gone."""


class DeadlinePassed(TransferError):
    """It took longer than it may."""
