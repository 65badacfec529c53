"""The ways into warm shared memory that are compared with Forebay, each a sender's and a receiver's process."""
