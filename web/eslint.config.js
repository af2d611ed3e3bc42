import js from "@eslint/js";
import jsxA11y from "eslint-plugin-jsx-a11y";
import reactHooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

const typed = tseslint.config(
  js.configs.recommended,
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  jsxA11y.flatConfigs.strict,
  reactHooks.configs.flat.recommended,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      "@typescript-eslint/consistent-type-definitions": ["error", "interface"],
      "@typescript-eslint/switch-exhaustiveness-check": "error",
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "no-restricted-globals": ["error", "localStorage", "sessionStorage"],
      "no-restricted-properties": ["error", { property: "innerHTML" }, { property: "outerHTML" }],
    },
  },
);

export default tseslint.config(
  { ignores: ["dist", ".cache", "node_modules", "src/api/generated", "eslint.config.js"] },
  { files: ["src/**/*.{ts,tsx}"], extends: [typed] },
  // The compiler knows better what is defined there.
  {
    files: ["tools/**/*.mjs", "tests/**/*.mjs"],
    extends: [js.configs.recommended],
    rules: { "no-undef": "off" },
  },
);
