from dataclasses import dataclass
@dataclass(frozen=True)
class Options: pass
