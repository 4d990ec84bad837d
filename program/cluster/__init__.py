"""Work over many items on Ray Data: processes on this machine or on many. Needs the extra [ray]."""
