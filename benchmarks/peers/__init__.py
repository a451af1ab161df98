"""The programs that ours is compared with, all behind one protocol."""
