build=None
