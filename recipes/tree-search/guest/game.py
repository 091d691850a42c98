"""A game of pushing boxes, played line by line over standard input and output.

The position is in this process and nowhere else. A move cannot be taken back: a box can be pushed
but not pulled.

    moves       -> a list of pushes: [row, column, direction]
    push N      -> plays the push with that number
    look        -> {"solved", "stuck", "distance", "position", "pushes"}
    show        -> the picture, as one text
"""

from __future__ import annotations

import json
import sys

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

Cell = tuple[int, int]


def next_to(cell: Cell, direction: str, times: int = 1) -> Cell:
    """The cell so many steps away."""
    row, column = STEPS[direction]
    return cell[0] + times * row, cell[1] + times * column


class Game:
    """A position, and what can be done in it."""

    def __init__(self, picture: str) -> None:
        self.walls: set[Cell] = set()
        self.goals: set[Cell] = set()
        self.boxes: set[Cell] = set()
        self.player: Cell = (0, 0)
        self.pushes = 0
        for row, line in enumerate(picture.splitlines()):
            for column, sign in enumerate(line):
                self._place((row, column), sign)

    def _place(self, cell: Cell, sign: str) -> None:
        if sign == "#":
            self.walls.add(cell)
        if sign in ".*+":
            self.goals.add(cell)
        if sign in "$*":
            self.boxes.add(cell)
        if sign in "@+":
            self.player = cell

    def _blocked(self, cell: Cell) -> bool:
        return cell in self.walls or cell in self.boxes

    def _reach(self) -> set[Cell]:
        """Where the player can walk."""
        reached, border = {self.player}, [self.player]
        while border:
            cell = border.pop()
            for direction in STEPS:
                step = next_to(cell, direction)
                if step not in reached and not self._blocked(step):
                    reached.add(step)
                    border.append(step)
        return reached

    def moves(self) -> list[tuple[int, int, str]]:
        """All pushes, in a fixed order."""
        reach = self._reach()
        return [
            (*box, direction)
            for box in sorted(self.boxes)
            for direction in sorted(STEPS)
            if next_to(box, direction, -1) in reach and not self._blocked(next_to(box, direction))
        ]

    def push(self, number: int) -> None:
        """Plays a push."""
        row, column, direction = self.moves()[number]
        self.boxes.remove((row, column))
        self.boxes.add(next_to((row, column), direction))
        self.player = (row, column)
        self.pushes += 1

    def _in_corner(self, box: Cell) -> bool:
        vertical = {next_to(box, "up"), next_to(box, "down")} & self.walls
        across = {next_to(box, "left"), next_to(box, "right")} & self.walls
        return bool(vertical and across)

    def look(self) -> dict[str, object]:
        """What a player sees at a glance."""
        distance = sum(
            min(abs(box[0] - goal[0]) + abs(box[1] - goal[1]) for goal in self.goals)
            for box in self.boxes
        )
        return {
            "solved": self.boxes == self.goals,
            "stuck": any(self._in_corner(box) for box in self.boxes - self.goals),
            "distance": distance,
            "position": repr((sorted(self.boxes), min(self._reach()))),
            "pushes": self.pushes,
        }

    def show(self) -> str:
        """The picture."""
        rows = 1 + max(row for row, _ in self.walls)
        columns = 1 + max(column for _, column in self.walls)
        return "\n".join(
            "".join(self._sign((row, column)) for column in range(columns)).rstrip()
            for row in range(rows)
        )

    def _sign(self, cell: Cell) -> str:
        if cell in self.walls:
            return "#"
        on_goal = cell in self.goals
        if cell in self.boxes:
            return "*" if on_goal else "$"
        if cell == self.player:
            return "+" if on_goal else "@"
        return "." if on_goal else " "


def main() -> None:
    with open(sys.argv[1]) as file:  # noqa: PTH123 - a guest program is kept plain
        game = Game(file.read())
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "push":
            game.push(int(numbers[0]))
            answer: object = None
        else:
            answer = {"moves": game.moves, "look": game.look, "show": game.show}[word]()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
