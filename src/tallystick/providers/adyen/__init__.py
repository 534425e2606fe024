"""Adyen: card payments and refunds by Checkout, payouts to third parties by the balance platform.

charge    POST /payments                  Checkout           told by reply and webhook; no question can be asked
refund    POST /payments/{psp}/refunds    Checkout           always "received"; the result comes by webhook
transfer  POST /transfers                 balance platform   "received"; asked for by our reference, exactly
"""
