import unittest

from payouts.ledger import Ledger, Unbalanced
from payouts.orders import Order, settle


class SettleTest(unittest.TestCase):
    def test_entries_that_do_not_balance_are_refused_and_book_nothing(self):
        ledger = Ledger()
        with self.assertRaises(Unbalanced):
            ledger.post("bad", {"a": 5, "b": -4})
        self.assertEqual(ledger.accounts(), [])

    def test_the_fee_goes_to_the_platform_and_the_rest_to_the_seller(self):
        ledger = Ledger()
        settle(ledger, Order("A1", 10_000, {"ann": 1}))
        self.assertEqual((ledger.balance("fees"), ledger.balance("seller:ann")), (250, 9_750))

    def test_three_sellers_of_equal_weight_share_an_order(self):
        ledger = Ledger()
        settle(ledger, Order("A2", 10_001, {"ann": 1, "bob": 1, "cho": 1}))
        parts = [ledger.balance(f"seller:{name}") for name in ("ann", "bob", "cho")]
        self.assertEqual(parts, [3_251, 3_250, 3_250])

    def test_an_order_and_its_refund_leave_every_balance_at_zero(self):
        ledger = Ledger()
        order = Order("A3", 4_999, {"ann": 5, "bob": 3, "cho": 3})
        settle(ledger, order)
        settle(ledger, order.refund())
        self.assertEqual([ledger.balance(name) for name in ledger.accounts()], [0] * 5)
