// What the bundle gives: Vega, Vega-Lite and vega-embed behind one function.
export { vegaEmbed };
