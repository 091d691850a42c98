import unittest

from payouts import money


class MoneyTest(unittest.TestCase):
    def test_an_amount_is_read_and_shown_alike(self):
        for text in ("0.00", "12.34", "-0.05", "100000.99"):
            self.assertEqual(money.show(money.parse(text)), text)

    def test_an_amount_without_two_decimals_is_refused(self):
        for text in ("12", "12.3", "1,50", "", "1.234"):
            with self.assertRaises(ValueError):
                money.parse(text)

    def test_a_fee_is_rounded_to_the_nearest_cent_and_returned_in_full(self):
        self.assertEqual(money.fee(1_999, 250), 50)
        self.assertEqual(money.fee(-1_999, 250), -50)
