import unittest
from fractions import Fraction

from payouts.split import split

CASES = [
    (total, weights)
    for total in (0, 1, 2, 99, 100, 101, 9_999, 123_457)
    for weights in ([1], [1, 1], [1, 1, 1], [3, 2, 1, 1], [0, 1, 1], [7, 11, 13, 17, 19])
]


class SplitTest(unittest.TestCase):
    def test_an_amount_that_divides_evenly_is_divided_evenly(self):
        self.assertEqual(split(900, [1, 1, 1]), [300, 300, 300])
        self.assertEqual(split(900, [2, 1]), [600, 300])

    def test_the_parts_add_up_to_the_total(self):
        for total, weights in CASES:
            self.assertEqual(sum(split(total, weights)), total, (total, weights))

    def test_more_than_the_total_is_never_paid(self):
        for total, weights in CASES:
            self.assertLessEqual(sum(split(total, weights)), total, (total, weights))

    def test_no_part_is_a_cent_away_from_its_exact_share(self):
        for total, weights in CASES:
            for part, weight in zip(split(total, weights), weights, strict=True):
                exact = Fraction(total * weight, sum(weights))
                self.assertLess(abs(part - exact), 1, (total, weights))

    def test_a_party_of_no_weight_gets_nothing(self):
        for total in (1, 2, 101):
            self.assertEqual(split(total, [0, 1, 1])[0], 0)

    def test_a_refund_takes_back_what_the_payment_gave(self):
        for total, weights in CASES:
            paid = split(total, weights)
            self.assertEqual(split(-total, weights), [-part for part in paid], (total, weights))

    def test_weights_that_mean_nothing_are_refused(self):
        for weights in ([], [0, 0], [2, -1]):
            with self.assertRaises(ValueError):
                split(100, weights)
