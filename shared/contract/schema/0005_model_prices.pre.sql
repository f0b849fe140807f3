-- List prices per million tokens as the providers publish them, from the day they were in force. A model that
-- is not here is unpriced, and its usage says so; a change of price ends a row and begins another.
INSERT INTO lockkeeper.model_prices
       (model, input_price, output_price, cache_read_price, cache_write_price, valid_from, note)
VALUES ('gpt-4o',                   2.50, 10.00, 1.25,  2.50,  '2024-10-02+00', 'list price'),
       ('gpt-4o-mini',              0.15,  0.60, 0.075, 0.15,  '2024-07-18+00', 'list price'),
       ('gpt-4.1',                  2.00,  8.00, 0.50,  2.00,  '2025-04-14+00', 'list price'),
       ('gpt-4.1-mini',             0.40,  1.60, 0.10,  0.40,  '2025-04-14+00', 'list price'),
       ('gpt-4.1-nano',             0.10,  0.40, 0.025, 0.10,  '2025-04-14+00', 'list price'),
       ('o3',                       2.00,  8.00, 0.50,  2.00,  '2025-06-10+00', 'list price'),
       ('o4-mini',                  1.10,  4.40, 0.275, 1.10,  '2025-04-16+00', 'list price'),
       ('gpt-5',                    1.25, 10.00, 0.125, 1.25,  '2025-08-07+00', 'list price'),
       ('gpt-5-mini',               0.25,  2.00, 0.025, 0.25,  '2025-08-07+00', 'list price'),
       ('gpt-5-nano',               0.05,  0.40, 0.005, 0.05,  '2025-08-07+00', 'list price'),
       ('claude-opus-4-1',         15.00, 75.00, 1.50, 18.75,  '2025-08-05+00', 'list price'),
       ('claude-opus-4-5',          5.00, 25.00, 0.50,  6.25,  '2025-11-24+00', 'list price'),
       ('claude-sonnet-4-20250514', 3.00, 15.00, 0.30,  3.75,  '2025-05-22+00', 'list price'),
       ('claude-sonnet-4-5',        3.00, 15.00, 0.30,  3.75,  '2025-09-29+00', 'list price'),
       ('claude-haiku-4-5',         1.00,  5.00, 0.10,  1.25,  '2025-10-15+00', 'list price'),
       ('rule-based-stand-in',      0.15,  0.60, 0.075, 0.15,  '2024-01-01+00',
        'the local stand-in''s own tariff, so that costs can be followed without a provider; nobody is charged')
    ON CONFLICT (model, currency, valid_from) DO NOTHING;
