"""What a failed attempt changed in place and a repeat would do twice: steps, buffers, gradients, tensors.

A tensor counts its in-place changes in ``_version``. Before each statement the versions and gradients of all tensors
under names, of all parameters and of all buffers are read. Two things may be older, since they are read less often: to
which tensors a module leads, and the state of optimizers. Older marks may say that something changed which had changed
before, never the other way round: versions only grow, and a tensor that the marks do not have counts as a change.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from itertools import compress, repeat
from operator import is_
from typing import Any

from . import optimizers, tensors
from .optimizers import Stepped, Zeroed
from .pure import Computed
from .tensors import Found, Path

__all__ = ["Mark", "changed", "undo", "watch"]

_NONE = id(None)


class Group:
    """Some tensors at one moment, none of them kept alive.

    Parameters
    ----------
    found
        The tensors; repeated ones and what is no tensor may be among them.
    grads
        Whether gradients are marked too.
    """

    def __init__(self, found: list[Any], *, grads: bool = True) -> None:
        ids = self.ids = list(map(id, found))
        different = set(ids)
        if len(different) == len(ids) and _NONE not in different:
            self.pick: list[int] = list(range(len(ids)))
            """Positions in `found`, of each tensor once."""
        else:
            first = dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True))
            first.pop(_NONE, None)
            self.pick = sorted(first.values())
        self.gone: list[Any] = []
        """References to those that have died."""
        mine: list[Any] = [found[i] for i in self.pick]
        try:
            self.versions = [one._version for one in mine]
            self.refs = list(map(weakref.ref, mine, repeat(self.gone.append)))
        except (RuntimeError, TypeError, AttributeError):
            self.pick = [i for i, tensor in zip(self.pick, mine, strict=True) if _counts(tensor)]
            mine = [found[i] for i in self.pick]
            self.versions = [one._version for one in mine]
            self.refs = [weakref.ref(tensor, self.gone.append) for tensor in mine]
        self.leaf: list[bool] = []
        self.whole = True
        """Whether all are leaves."""
        self.grads: list[Any] = []
        """Reference to the gradient of each leaf, or None."""
        self.grad_ids: list[int] = []
        self.grad_versions: list[int] = []
        self.faded: list[Any] = []
        """As `gone`, of gradients."""
        if grads:
            self.leaf = [one.is_leaf for one in mine]  # reading .grad of another warns
            self.whole = False not in self.leaf
            self._mark_gradients(mine)

    def again(self, found: list[Any] | None = None) -> Group | None:
        """The same tensors now, which are those in `found`; None where one of them has died."""
        mine: list[Any] = [ref() for ref in self.refs] if found is None else [found[i] for i in self.pick]
        if self.gone:
            return None
        new: Group = object.__new__(Group)
        new.__dict__.update(self.__dict__)
        new.versions = [one._version for one in mine]
        if new.versions == self.versions:
            new.versions = self.versions
        if self.leaf:
            # what is a leaf ends to be one by a change in place only; another becomes one by detach_() too
            if new.versions is not self.versions or not self.whole:
                new.leaf = [one.is_leaf for one in mine]
                new.whole = False not in new.leaf
            new._mark_gradients(mine)
        return new

    def graded_anew(self) -> Group | None:
        """The same tensors with their versions of before and their gradients of now; None where one has died."""
        mine: list[Any] = [ref() for ref in self.refs]
        if self.gone or not self.whole:
            return None
        new: Group = object.__new__(Group)
        new.__dict__.update(self.__dict__)
        new._mark_gradients(mine)
        return new

    def seems_same(self) -> bool:
        """Whether the first and the last tensor are what they were: a guess, which costs no wrong numbers."""
        if self.gone:
            return False
        for i in (0, -1) if self.refs else ():
            tensor = self.refs[i]()
            if tensor is None or tensor._version != self.versions[i]:
                return False
        return True

    def _mark_gradients(self, mine: list[Any]) -> None:
        now = [one.grad for one in (mine if self.whole else compress(mine, self.leaf))]
        ids = list(map(id, now))
        if self.faded or ids != self.grad_ids:
            self.grad_ids, self.faded = ids, []
            gone = self.faded.append
            self.grads = [None if grad is None else weakref.ref(grad, gone) for grad in now]
        self.grad_versions = [0 if grad is None else grad._version for grad in now]

    def same(self, other: Group) -> bool:
        """Whether these are the same tensors with the same versions."""
        return self.refs is other.refs and self.versions is other.versions

    def graded(self) -> Iterable[tuple[int, Any, Any, int]]:
        """(position in what was found, leaf, reference to its gradient or None, that one's version)."""
        leaves = compress(zip(self.pick, self.refs, strict=True), self.leaf)
        for (i, ref), grad, version in zip(leaves, self.grads, self.grad_versions, strict=True):
            tensor = ref()
            if tensor is not None and tensor.is_leaf:
                yield i, tensor, grad, version


def _counts(value: Any) -> bool:
    """Whether it counts its changes: inference tensors do not, and an optimizer's state has numbers too."""
    try:
        return type(value._version) is int
    except (RuntimeError, TypeError, AttributeError):
        return False


class Mark:
    """The tensors of a namespace before a statement.

    Parameters
    ----------
    torch
        The module.
    found
        What the namespace leads to.
    last
        The mark before the last statement, or None.
    walk
        Whether modules may lead to other tensors than at `last`.
    steps
        Whether the statement changes optimizers' state by their step alone: then a part of it tells. None: not at all.
    older
        ``versions``: parameters and buffers need not be read again, only their gradients; ``all``: those neither.
    """

    __slots__ = (
        *("empty", "free", "owned", "owners", "paths", "roots", "signs", "stale", "state"),
        *("state_owners", "steps", "torch"),
    )
    free: Group
    """Tensors under names and in containers; `paths` are theirs."""
    owned: Group
    """Parameters and buffers, of `owners` in this order."""
    owners: list[_Owner]
    state: Group
    state_owners: list[_Owner]

    def __init__(
        self, torch: Any, found: Found, last: Mark | None, walk: bool, *, steps: bool | None, older: str
    ) -> None:
        self.steps, self.stale = steps, False
        self.torch, self.paths = torch, found.paths
        self.free = _as_before(found.tensors, None if last is None else last.free) or Group(found.tensors)
        self.roots = [weakref.ref(owner) for _, owner in (*found.modules, *found.optimizers)]
        self.signs = [_sign(torch, optimizer) for _, optimizer in found.optimizers]
        self.empty = [weakref.ref(optimizer) for _, optimizer in found.optimizers if not optimizer.state]
        """Optimizers that have not stepped."""
        if last is not None and (len(last.roots) != len(self.roots) or not all(map(is_, last.roots, self.roots))):
            last = None
        owned = None
        if last is not None and not walk:
            owned = self._older(last, older) or last.owned.again()
        if last is not None and owned is not None:
            self.owned, self.owners = owned, last.owners
        else:
            self._walk(found, last)
        if (
            last is not None
            and last.signs == self.signs
            and last.owned.same(self.owned)
            and (steps is not False or last.steps is False)
        ):
            self.state, self.state_owners = last.state, last.state_owners
            return
        self.state_owners = []
        state: list[Any] = []
        for path, optimizer in found.optimizers:
            part = optimizers.first(torch, optimizer) if steps is not False else None
            state += tensors.of_state(optimizer) if part is None else part
            self.state_owners.append((len(state), "state", path, weakref.ref(optimizer)))
        self.state = _as_before(state, None if last is None else last.state) or Group(state, grads=False)

    def _older(self, last: Mark, older: str) -> Group | None:
        if not older or not last.owned.seems_same():
            return None
        if older == "versions":
            return last.owned.graded_anew()
        self.stale = True
        return last.owned

    def _walk(self, found: Found, last: Mark | None) -> None:
        self.owners = []
        mine: list[Any] = []
        for path, module in found.modules:
            for kind, part in zip(("parameter", "buffer"), tensors.of_module(module), strict=True):
                mine += part
                self.owners.append((len(mine), kind, path, weakref.ref(module)))
        for path, optimizer in found.optimizers:
            mine += tensors.of_groups(optimizer)
            self.owners.append((len(mine), "parameter", path, weakref.ref(optimizer)))
        self.owned = _as_before(mine, None if last is None else last.owned) or Group(mine)


def _as_before(found: list[Any], last: Group | None) -> Group | None:
    """The last group, read again, where it is of the same tensors."""
    return last.again(found) if last is not None and last.ids == list(map(id, found)) else None


_Owner = tuple[int, str, Path, Any]
"""(end of its tensors, their kind, path, reference to the module or the optimizer)."""


def _sign(torch: Any, optimizer: Any) -> list[int]:
    """What changes, as a rule, with an optimizer's state: how much there is, and the first of it."""
    states = optimizer.state
    sign = [id(optimizer), len(states)]
    for value in next(iter(states.values())).values() if states else ():
        sign += (id(value), value._version) if issubclass(type(value), torch.Tensor) else (id(value),)
    return sign


def watch(
    torch: Any,
    namespace: Iterable[Any],
    last: Mark | None = None,
    walk: bool = True,
    *,
    steps: bool | None = False,
    older: str = "",
) -> Mark:
    """Marks of the tensors that the namespace's values hold; `namespace` maps names to values, or is values.

    `last` is the mark that was taken before the last statement; without `walk` that one is not taken to have changed
    which tensors a module has. With `steps` the next one changes optimizers' state by their step alone. `older`
    says what may be as old as `last`: see `Mark`. What changed in between then counts as a change of the next one's.
    """
    found = Found()
    if isinstance(namespace, Mapping):
        items: Iterable[tuple[Any, Any]] = list(namespace.items())
    else:
        items = ((f"value {i}", value) for i, value in enumerate(namespace))
    for name, value in items:
        tensors.collect(torch, str(name), value, tensors.DEPTH, found)
    return Mark(torch, found, last, walk, steps=steps, older=older)


def changed(mark: Mark | Zeroed | Stepped | Computed) -> list[str]:
    """One sentence for each kind of change since `watch`; empty when nothing changed."""
    if not isinstance(mark, Mark):
        return mark.changed()
    found: dict[str, list[str]] = {}
    for i, ref, version in zip(mark.free.pick, mark.free.refs, mark.free.versions, strict=True):
        tensor = ref()
        if (
            tensor is not None and tensor._version != version
        ):  # a name or a container that leads elsewhere is told there
            found.setdefault("tensor", []).append(tensors.text(mark.paths[i]))
    labels: dict[int, str] = {}
    for group, owners in ((mark.owned, mark.owners), (mark.state, mark.state_owners)):
        _owned(mark.torch, group, owners, found, labels)
    known = {id(tensor) for ref in mark.state.refs if (tensor := ref()) is not None}
    for _, _, path, reference in mark.state_owners:
        optimizer = reference()
        if optimizer is None:
            continue
        if mark.steps is not None and optimizers.uncounted(optimizer):
            found.setdefault("uncounted", [])
        states = [one for one in optimizer.state.values() if isinstance(one, dict)]
        if "state" not in found and any(optimizers.counted(one) for one in states if id(one.get("step")) not in known):
            found.setdefault("state", []).append(f"the state of {tensors.text(path)}")
    for i, tensor, grad, version in mark.free.graded():
        if _accumulated(tensor, grad, version):
            found.setdefault("gradient", []).append(tensors.text(mark.paths[i]))
    for _, tensor, grad, version in mark.owned.graded():
        if _accumulated(tensor, grad, version) or (mark.stale and grad is None and tensor.grad is not None):
            found.setdefault("gradient", []).append(labels.get(id(tensor), "a parameter"))
    return [_SENTENCES[kind].format(_some(names)) for kind, names in found.items()]


def _owned(torch: Any, group: Group, owners: list[_Owner], found: dict[str, list[str]], labels: dict[int, str]) -> None:
    """Tensors of modules and optimizers that have changed, and those that have come or gone."""
    marks = iter(zip(group.pick, group.refs, group.versions, strict=True))
    mark = next(marks, None)
    known = {id(tensor) for ref in group.refs if (tensor := ref()) is not None}
    for end, kind, path, reference in owners:
        owner = reference()
        here = {} if owner is None else _tell(torch, kind, path, owner, labels)
        while mark is not None and mark[0] < end:
            tensor, version = mark[1](), mark[2]
            if tensor is not None and tensor._version != version:
                found.setdefault(kind, []).append(labels.get(id(tensor), f"a {kind} of {tensors.text(path)}"))
            elif owner is not None and id(tensor) not in here:
                found.setdefault(f"{kind} replaced", []).append(f"a {kind} of {tensors.text(path)}")
            mark = next(marks, None)
        new = [one for one in here.values() if id(one) not in known and _counts(one)]
        if kind != "state":  # that of a first step; with it the parameters change
            for one in new:
                found.setdefault(f"{kind} replaced", []).append(
                    labels.get(id(one), f"a {kind} of {tensors.text(path)}")
                )


def _tell(torch: Any, kind: str, path: Path, owner: Any, labels: dict[int, str]) -> dict[int, Any]:
    """What of this kind the owner leads to now, by id; labels go to `labels`."""
    for label, _, tensor in tensors.named(torch, path, owner):
        labels.setdefault(id(tensor), label)
    if issubclass(type(owner), torch.nn.Module):
        part = tensors.of_module(owner)[kind == "buffer"]
    else:
        part = tensors.of_state(owner) if kind == "state" else tensors.of_groups(owner)
    return {id(tensor): tensor for tensor in part}


def _accumulated(tensor: Any, grad: Any, version: int) -> bool:
    """Whether a gradient grew. One that was not there before can be put back: see `undo`."""
    now = tensor.grad
    return grad is not None and now is not None and (grad() is not now or now._version != version)


def undo(mark: Mark | Zeroed | Stepped | Computed) -> None:
    """Take away gradients and optimizers' state that were not there at `watch`: what failed half way left them."""
    if not isinstance(mark, Mark):
        mark.undo()
        return
    for group in (mark.free,) if mark.stale else (mark.free, mark.owned):
        for _, tensor, grad, _ in group.graded():
            if grad is None and tensor.grad is not None:
                tensor.grad = None
    for reference in mark.empty:  # the first step failed while it made its state
        optimizer = reference()
        if optimizer is not None:
            optimizer.state.clear()


_SENTENCES = {
    "tensor": "changed in place: {}",
    "parameter": "parameters were updated: {}",
    "buffer": "buffers were updated: {}",
    "state": "an optimizer stepped: {}",
    "parameter replaced": "parameters were replaced: {}",
    "buffer replaced": "buffers were replaced: {}",
    "state replaced": "an optimizer's state was replaced: {}",
    "gradient": "gradients were accumulated: {}",
    "uncounted": optimizers.MAY_HAVE_STEPPED,
}


def _some(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
