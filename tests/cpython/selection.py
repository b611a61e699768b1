from __future__ import annotations

def exception(name): return None
def chosen(names, method, exceptions=False): return list(names)
